"""What programs are told of a plan: commands, files and manifests, whatever stack or engine it is for."""
