// @ts-check
// Buttons, chips, fields, states and bars.
import { useId } from "preact/hooks";
import { labelColor } from "../lib/color.js";
import { Icon } from "./icons.jsx";

/** @typedef {import("preact").ComponentChildren} Children */

/**
 * @param {{icon?: string, label?: string, children?: Children, kind?: "plain" | "primary" | "quiet" | "danger",
 *   onClick?: (event: MouseEvent) => void, pressed?: boolean, disabled?: boolean, busy?: boolean,
 *   type?: "button" | "submit", test?: string, keys?: string, expanded?: boolean}} props
 *   `label` names a button that is an icon alone; `keys` are shown in its title.
 */
export function Button({ icon, label, children, kind = "plain", onClick, pressed, disabled, busy, type = "button", test, keys, expanded }) {
  const title = label && keys ? `${label} (${keys})` : label;
  return (
    <button
      type={type}
      class={`button ${kind} ${children ? "" : "square"}`}
      aria-label={children ? undefined : label}
      title={children && !keys ? undefined : title}
      aria-pressed={pressed}
      aria-expanded={expanded}
      disabled={disabled || busy}
      aria-busy={busy || undefined}
      onClick={onClick}
      data-test={test}
    >
      {busy ? <Spinner small /> : icon ? <Icon name={icon} /> : null}
      {children ? <span>{children}</span> : null}
    </button>
  );
}

/** @param {{children: Children, label?: string, tone?: "plain" | "warn" | "bad" | "good" | "accent", title?: string,
 *   onClick?: () => void, onRemove?: () => void, pressed?: boolean, test?: string}} props
 *   `label` gives the chip the dot of that label's colour. */
export function Chip({ children, label, tone = "plain", title, onClick, onRemove, pressed, test }) {
  const dot = label === undefined ? null : <span class="dot" style={{ background: labelColor(label) }} />;
  const inside = (
    <>
      {dot}
      <span class="chip-text">{children}</span>
    </>
  );
  if (onClick) {
    return (
      <button type="button" class={`chip ${tone}`} title={title} onClick={onClick} aria-pressed={pressed} data-test={test}>
        {inside}
      </button>
    );
  }
  return (
    <span class={`chip ${tone}`} title={title} data-test={test}>
      {inside}
      {onRemove ? (
        <button type="button" class="chip-remove" aria-label={`Remove ${label ?? children}`} onClick={onRemove}>
          <Icon name="close" size={12} />
        </button>
      ) : null}
    </span>
  );
}

/** @param {{small?: boolean, label?: string}} props */
export function Spinner({ small = false, label = "Loading" }) {
  return <span class={small ? "spinner small" : "spinner"} role="status" aria-label={label} />;
}

/** A state without contents: what is missing, and what to do.
 * @param {{icon?: string, title: string, children?: Children, test?: string}} props */
export function Empty({ icon = "info", title, children, test = "empty" }) {
  return (
    <div class="empty" data-test={test}>
      <Icon name={icon} size={28} />
      <h2>{title}</h2>
      {children ? <div class="empty-text">{children}</div> : null}
    </div>
  );
}

/** @param {{error: any, onRetry?: () => void}} props */
export function Failure({ error, onRetry }) {
  return (
    <div class="failure" role="alert" data-test="failure">
      <Icon name="warning" />
      <div>
        <p>{error.message}</p>
        {error.hint ? <p class="muted">{error.hint}</p> : null}
      </div>
      {onRetry ? <Button onClick={onRetry} test="retry">Try again</Button> : null}
    </div>
  );
}

/** A named control.
 * @param {{label: string, hint?: Children, children: (id: string) => Children}} props */
export function Field({ label, hint, children }) {
  const id = useId();
  return (
    <div class="field">
      <label for={id}>{label}</label>
      {children(id)}
      {hint ? <small class="muted">{hint}</small> : null}
    </div>
  );
}

/** Choices of which one holds.
 * @param {{label: string, value: string, options: {value: string, label: string, icon?: string}[],
 *   onChange: (value: string) => void, test?: string}} props */
export function Segmented({ label, value, options, onChange, test }) {
  return (
    <div class="segmented" role="group" aria-label={label} data-test={test}>
      {options.map((option) => (
        <button
          type="button"
          key={option.value}
          aria-pressed={option.value === value}
          title={option.icon ? option.label : undefined}
          aria-label={option.icon ? option.label : undefined}
          onClick={() => onChange(option.value)}
          data-test={test ? `${test}-${option.value}` : undefined}
        >
          {option.icon ? <Icon name={option.icon} size={16} /> : option.label}
        </button>
      ))}
    </div>
  );
}

/** Amounts side by side as one bar, with a legend.
 * @param {{label: string, parts: {name: string, value: number, color: string, text: string}[], total?: number}} props
 *   `total` is the length of the bar; the rest stays empty. */
export function StackedBar({ label, parts, total }) {
  const sum = parts.reduce((all, part) => all + part.value, 0);
  const whole = Math.max(total ?? sum, sum, 1e-12);
  return (
    <div class="stacked">
      <div class="stacked-bar" role="img" aria-label={`${label}: ${parts.map((part) => `${part.name} ${part.text}`).join(", ")}`}>
        {parts.map((part) => (
          <span
            key={part.name}
            title={`${part.name}: ${part.text}`}
            style={{ width: `${(part.value / whole) * 100}%`, background: part.color }}
          />
        ))}
      </div>
      <ul class="legend">
        {parts.map((part) => (
          <li key={part.name}>
            <span class="dot" style={{ background: part.color }} />
            {part.name} <span class="muted">{part.text}</span>
          </li>
        ))}
      </ul>
    </div>
  );
}

/** Amounts below each other, as lengths of one unit.
 * @param {{rows: {name: string, value: number, text: string, accent?: boolean}[]}} props */
export function Bars({ rows }) {
  const most = Math.max(...rows.map((row) => row.value), 1e-12);
  return (
    <dl class="bars">
      {rows.map((row) => (
        <div key={row.name}>
          <dt>{row.name}</dt>
          <dd>
            <span class={row.accent ? "bar accent" : "bar"} style={{ width: `${(row.value / most) * 100}%` }} />
            <span class="bar-text">{row.text}</span>
          </dd>
        </div>
      ))}
    </dl>
  );
}

/** Facts as pairs; those without a value are left out.
 * @param {{rows: [string, Children][], test?: string}} props */
export function Facts({ rows, test }) {
  return (
    <dl class="facts" data-test={test}>
      {rows
        .filter(([, value]) => value !== null && value !== undefined && value !== "")
        .map(([name, value]) => (
          <div key={name}>
            <dt>{name}</dt>
            <dd>{value}</dd>
          </div>
        ))}
    </dl>
  );
}
