/** Numbers about many turns. */

/** The value that this share of `values` does not exceed, interpolated; `null` if there is none. */
export function quantile(values, share) {
  if (values.length === 0) return null;
  const sorted = values.toSorted((one, other) => one - other);
  const place = share * (sorted.length - 1);
  const below = Math.floor(place);
  const above = Math.min(below + 1, sorted.length - 1);
  return sorted[below] + (place - below) * (sorted[above] - sorted[below]);
}

/** For each value, the quantile of it and of up to `width - 1` before it. */
export function rolling(values, share, width) {
  return values.map((_, at) => quantile(values.slice(Math.max(0, at + 1 - width), at + 1), share));
}

/** How often each result of `key` occurs. */
export function tally(items, key) {
  const counts = {};
  for (const item of items) counts[key(item)] = (counts[key(item)] ?? 0) + 1;
  return counts;
}

/** What became of the tokens of these turns' answers, and in how many steps they came. */
export function tokenCounts(turns) {
  const steps = turns.flatMap((turn) => turn.steps);
  const fates = tally(steps.flat(), (token) => token.fate);
  const { accepted = 0, rejected = 0, unverified = 0, own = 0 } = fates;
  return {
    steps: steps.length,
    drafted: accepted + rejected + unverified,
    verified: accepted + rejected,
    accepted,
    rejected,
    unverified,
    own,
    perStep: steps.length ? (accepted + own) / steps.length : null,
  };
}
