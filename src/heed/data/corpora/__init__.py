"""Named corpora: a TOML file each, and what reads them."""
