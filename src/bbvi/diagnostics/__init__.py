"""What a person asks of a model or of a fit: explanations, gradient moments, held-out predictions."""
