"""Commands that show and change what an installation consists of."""
