// @ts-check
// A month of a camera: how much of each day is kept, and which days have gaps.
import { useState } from "preact/hooks";
import { useAnswer } from "../api.js";
import { counted, duration } from "../lib/format.js";
import { escaped } from "../lib/paths.js";
import { dayOf, longDay, monthAfter, monthName, monthOf } from "../lib/wallclock.js";
import { Button } from "./basics.jsx";

/** @typedef {import("../lib/wallclock.js").Day} Day */

/** @param {{camera: string, day: Day, onDay: (day: Day) => void}} props */
export function Calendar({ camera, day, onDay }) {
  const [month, setMonth] = useState(monthOf(day)[0]);
  const days = monthOf(month);
  const zone = Intl.DateTimeFormat().resolvedOptions().timeZone;
  const { data } = useAnswer(`/api/1/cameras/${escaped(camera)}/calendar`, { month: month.key.slice(0, 7), zone });
  const kept = new Map((data?.items ?? []).map((/** @type {any} */ one) => [one.day, one]));
  const today = dayOf(Date.now()).key;
  const before = (new Date(month.start).getDay() + 6) % 7;
  /** @param {KeyboardEvent} event */
  const onKeyDown = (event) => {
    const steps = /** @type {Record<string, number>} */ ({ ArrowLeft: -1, ArrowRight: 1, ArrowUp: -7, ArrowDown: 7 });
    const step = steps[event.key];
    const buttons = [.../** @type {HTMLElement} */ (event.currentTarget).querySelectorAll("button")];
    const index = buttons.indexOf(/** @type {HTMLButtonElement} */ (event.target));
    const next = step === undefined || index < 0 ? undefined : buttons[index + step];
    if (step === undefined) return;
    event.preventDefault();
    event.stopPropagation();
    next?.focus();
  };
  return (
    <div class="calendar" data-test="calendar">
      <div class="calendar-head">
        <Button kind="quiet" icon="left" label="Month before" onClick={() => setMonth(monthAfter(month, -1))} test="month-before" />
        <h2>{monthName(month.start)}</h2>
        <Button kind="quiet" icon="right" label="Month after" onClick={() => setMonth(monthAfter(month, 1))} test="month-after" />
      </div>
      <div class="calendar-days" onKeyDown={onKeyDown}>
        {["Mo", "Tu", "We", "Th", "Fr", "Sa", "Su"].map((name) => <span key={name} class="weekday" aria-hidden="true">{name}</span>)}
        {days.map((one, index) => {
          const facts = kept.get(one.key);
          const share = facts ? Math.min((facts.kept * 1000) / (one.end - one.start), 1) : 0;
          return (
            <button
              type="button"
              key={one.key}
              class={`calendar-day ${facts?.kept > 0 ? "has" : ""} ${facts?.kept > 0 && facts.gaps > 0 ? "gaps" : ""} ${one.key === today ? "today" : ""}`}
              style={{ gridColumnStart: index === 0 ? before + 1 : undefined, "--heat": facts?.kept > 0 ? 0.3 + 0.7 * share : 0 }}
              aria-current={one.key === day.key ? "date" : undefined}
              aria-label={`${longDay(one.start)}: ${inWords(facts)}`}
              title={inWords(facts)}
              onClick={() => onDay(one)}
              data-test="calendar-day"
              data-day={one.key}
            >
              {index + 1}
            </button>
          );
        })}
      </div>
    </div>
  );
}

/** @param {any} facts */
function inWords(facts) {
  if (!facts || facts.kept === 0) return "nothing kept";
  return `${duration(facts.kept)} kept${facts.gaps > 0 ? `, ${counted(facts.gaps, "gap")}` : ""}`;
}
