"""``python -m attnknn``."""

from attnknn.cli import main

if __name__ == "__main__":
    main()
