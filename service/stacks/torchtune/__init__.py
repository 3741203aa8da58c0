"""torchtune."""
