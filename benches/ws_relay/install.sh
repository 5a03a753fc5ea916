#!/bin/sh
# install.sh CACHE: install the relay and its library, by its lock file, into a folder of CACHE, and print that folder.
# The name of the folder is the digest of the files, so a changed relay is installed anew.
set -eu
absent=""
for program in node npm; do
  command -v "$program" >/dev/null 2>&1 || absent="$absent${absent:+, }$program"
done
if [ -n "$absent" ]; then
  echo "not installed: $absent" >&2
  exit 1
fi
cd "$(dirname "$0")"
digest=$(cat package.json package-lock.json relay.js | node -e \
  'process.stdout.write(require("crypto").createHash("sha256").update(require("fs").readFileSync(0)).digest("hex").slice(0, 16))')
home="$1/ws_relay-$digest"
if [ ! -d "$home" ]; then
  mkdir -p "$1"
  folder=$(mktemp -d "$1/ws_relay.XXXXXX")
  trap 'rm -rf "$folder"' EXIT
  cp package.json package-lock.json relay.js "$folder"
  (cd "$folder" && npm ci --no-audit --no-fund --ignore-scripts >&2) || { echo "\`npm ci\` failed" >&2; exit 1; }
  mv "$folder" "$home"
fi
echo "$home"
