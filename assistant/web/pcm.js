/** The wire's audio: 24 kHz mono PCM16, little-endian, in base64. */

export const WIRE_RATE_HZ = 24_000;

/** Encode the bytes of a view or buffer as base64. */
export function toBase64(buffer) {
  const bytes = new Uint8Array(buffer);
  if (bytes.toBase64) return bytes.toBase64();
  let text = "";
  for (let at = 0; at < bytes.length; at += 0x8000) {
    text += String.fromCharCode(...bytes.subarray(at, at + 0x8000));
  }
  return btoa(text);
}

/** Decode base64 into a fresh `ArrayBuffer`. */
export function fromBase64(text) {
  if (Uint8Array.fromBase64) return Uint8Array.fromBase64(text).buffer;
  const binary = atob(text);
  const bytes = new Uint8Array(binary.length);
  for (let at = 0; at < bytes.length; at++) bytes[at] = binary.charCodeAt(at);
  return bytes.buffer;
}

/** Read PCM16 as floats in [-1, 1).  A last odd byte is not a sample. */
export function pcmToFloat(buffer) {
  const view = new DataView(buffer);
  const samples = new Float32Array(buffer.byteLength >> 1);
  for (let at = 0; at < samples.length; at++) samples[at] = view.getInt16(2 * at, true) / 32768;
  return samples;
}

/** Write floats as PCM16; what is louder than full scale is clipped. */
export function floatToPcm(samples) {
  const buffer = new ArrayBuffer(samples.length * 2);
  const view = new DataView(buffer);
  for (let at = 0; at < samples.length; at++) {
    const value = Math.max(-32768, Math.min(32767, Math.round(samples[at] * 32768)));
    view.setInt16(2 * at, value, true);
  }
  return buffer;
}

/** Root mean square of `samples[start, end)`. */
export function rms(samples, start = 0, end = samples.length) {
  let sum = 0;
  for (let at = start; at < end; at++) sum += samples[at] * samples[at];
  return Math.sqrt(sum / Math.max(1, end - start));
}
