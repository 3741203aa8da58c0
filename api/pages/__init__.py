"""The web pages: their templates, and the files that they load."""
