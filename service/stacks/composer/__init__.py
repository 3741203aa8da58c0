"""MosaicML's Composer and llm-foundry."""
