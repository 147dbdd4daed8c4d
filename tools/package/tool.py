"""The program `zero` of the wheel."""
import os
import sys


def main():
    program = os.path.join(os.path.dirname(os.path.abspath(__file__)), "bin", "zero")
    os.execv(program, [program, *sys.argv[1:]])
