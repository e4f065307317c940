"""The paper's tables and figures: what was published, what Heed measures, and the page that shows both."""
