import type { Count } from "./generated";

const WHOLE = new Intl.NumberFormat("en-US", { maximumFractionDigits: 0 });

/** `12,345`, as the server writes it, whatever the machine's locale. */
export function number(value: number): string {
  return WHOLE.format(value);
}

/** A count with `~` before what is not exact: `12,345`, `~12,345`. */
export function tokens(count: Pick<Count, "tokens" | "method">): string {
  const exact = count.method === "exact" || count.method === "endpoint";
  return (exact ? "" : "~") + number(count.tokens);
}

/** How a count was made: `o200k_base, exact`, `claude, estimate ±12%`. */
export function how(count: Count): string {
  const error = count.errorPercent ? ` ±${number(Math.ceil(count.errorPercent))}%` : "";
  return `${count.tokenizer}, ${count.method}${error}`;
}

/** Dollars with what a single request needs of digits. */
export function usd(value: number): string {
  return `$${value.toFixed(value >= 1 ? 2 : 6)}`;
}

/** The message of anything that was thrown. */
export function reason(error: unknown): string {
  return error instanceof Error ? error.message : String(error);
}
