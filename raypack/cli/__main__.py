"""Run the command line as a module."""

from raypack.cli import main

main()
