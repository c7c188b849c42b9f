"""Sound in and sound out: formats, speech detection, recognition, text for speech, synthesis."""
