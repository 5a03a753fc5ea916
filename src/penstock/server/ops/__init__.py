"""Running and maintaining a server: child processes, backups, deployment files, reference pages, kernel pipes. Knows no HTTP handler."""
