"""What the service knows of each training stack: its launch files, and its commands as clusters run them."""
