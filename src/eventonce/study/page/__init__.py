"""The pages of the study's reports: `Page`, the parts of its sections, and the plots."""
