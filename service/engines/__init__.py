"""What the service knows of each serving engine: its launch command, and its commands as clusters run them."""
