// Where a run stands, in words.

const WORDS = {
  waiting: ["waiting for clients", "is-warn"], collecting: ["training", "is-run"], aggregating: ["aggregating", "is-run"],
  evaluating: ["final evaluation", "is-run"], paused: ["paused", "is-warn"], finished: ["finished", "is-good"],
  failed: ["failed", "is-bad"], stopped: ["stopped", "is-bad"],
};

export const isFinal = (phase) => ["finished", "failed", "stopped"].includes(phase);

/** A run's phase, and the class of its dot; for a run in files that no server has (`served` is false), how far it came. */
export function phaseWords(phase, { served, done }) {
  if (served !== false || isFinal(phase)) return WORDS[phase] ?? [phase, ""];
  return [`not running, ${done ? `after round ${done}` : phase === "waiting" ? "not begun" : "in round 1"}`, "is-warn"];
}
