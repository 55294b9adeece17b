"""`specc train`: a drafter for a target that has none, taught on what the target itself writes."""
