"""The `spaces` section: space files, their sections and the token files of participants. Knows no protocol state."""
