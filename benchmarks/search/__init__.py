"""How fast layouts are searched, and how long `POST /plan/train` takes."""
