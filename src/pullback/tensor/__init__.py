"""The lazy tensor and tracing."""
