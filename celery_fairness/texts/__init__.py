"""The texts for people that commands and the admin share: lines, tables and cells of numbers."""
