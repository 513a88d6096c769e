"""What an option is, and how command lines, files and people write its value."""
