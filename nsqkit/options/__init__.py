"""Options: their description and checks, and how they are read from command lines, files and the environment."""
