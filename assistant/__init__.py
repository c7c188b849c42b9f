"""A real-time voice assistant: microphone to loudspeaker, streaming all the way."""
