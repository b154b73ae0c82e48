"""`python -m reluctant`, and under several processes `torchrun … -m reluctant`."""

from reluctant.cli import main

if __name__ == "__main__":
    main()
