"""torchtitan, with FSDP2."""
