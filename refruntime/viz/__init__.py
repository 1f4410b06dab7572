"""Pictures of what the runtime did: self-contained HTML reports."""
