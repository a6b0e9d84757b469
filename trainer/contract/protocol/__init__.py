"""What passes between the launcher and a program: environment, exit codes, events, reports."""
