"""The same stored questions asked of two versions of the service, and their answers compared byte for byte."""
