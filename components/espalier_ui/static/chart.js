// One chart against the step: lines, marks of what happened on the axis, a click that opens a step.
import { useEffect, useRef } from "./vendor/hooks.mjs";
import uPlot from "./vendor/uPlot.mjs";
import { figure, tick } from "./figures.js";
import { html } from "./parts.js";

/** @typedef {{label: string, steps: number[], values: (number | null)[]}} Line
 * @typedef {{step: number, kind: string, text: string}} Mark
 * @typedef {{lines: Line[], label: string, height?: number, marks?: Mark[], zero?: boolean,
 *   sync?: string, onStep?: (step: number, line: number) => void}} Drawn */

/** A colour of the style sheet as a canvas understands it; none where there is no such colour.
 * @param {string} name @returns {string} */
function colour(name) {
  const probe = document.createElement("span");
  probe.style.color = `var(${name}, transparent)`;
  document.body.append(probe);
  const resolved = getComputedStyle(probe).color;
  probe.remove();
  return resolved;
}

/** Lines on one axis of steps; a step that a line lacks has no value.
 * @param {Line[]} lines @returns {uPlot.AlignedData} */
function aligned(lines) {
  const steps = [...new Set(lines.flatMap((line) => line.steps))].sort((a, b) => a - b);
  return [
    steps,
    ...lines.map((line) => {
      const at = new Map(line.steps.map((step, index) => [step, line.values[index] ?? null]));
      return steps.map((step) => at.get(step) ?? null);
    }),
  ];
}

/** @param {Line[]} lines @returns {string} what the chart shows, in words */
function inWords(lines) {
  return lines
    .map((line) => {
      const seen = line.values.flatMap((value) => (typeof value === "number" ? [value] : []));
      if (!seen.length) return `${line.label}: no values`;
      const [first, last] = [seen[0], seen[seen.length - 1]];
      const [low, high] = [
        seen.reduce((a, b) => Math.min(a, b)),
        seen.reduce((a, b) => Math.max(a, b)),
      ];
      return (
        `${line.label}: ${figure(first)} at the beginning, ${figure(last)} at the end, ` +
        `between ${figure(low)} and ${figure(high)}, ${seen.length} values`
      );
    })
    .join("; ");
}

/** @param {Mark[]} marks @returns {uPlot.Plugin} dashed lines in the colour of their kind */
function drawnMarks(marks) {
  return {
    hooks: {
      draw: (plot) => {
        const { ctx, bbox } = plot;
        ctx.save();
        ctx.lineWidth = devicePixelRatio;
        for (const mark of marks) {
          const x = Math.round(plot.valToPos(mark.step, "x", true));
          if (x < bbox.left || x > bbox.left + bbox.width) continue;
          ctx.strokeStyle = ctx.fillStyle = colour(`--mark-${mark.kind}`);
          ctx.setLineDash([4 * devicePixelRatio, 3 * devicePixelRatio]);
          ctx.beginPath();
          ctx.moveTo(x, bbox.top);
          ctx.lineTo(x, bbox.top + bbox.height);
          ctx.stroke();
          ctx.beginPath();
          ctx.arc(x, bbox.top + 3 * devicePixelRatio, 3 * devicePixelRatio, 0, 7);
          ctx.fill();
        }
        ctx.restore();
      },
    },
  };
}

/** @param {Drawn} drawn @param {number} width @returns {uPlot.Options} */
function options({ lines, marks = [], height = 150, zero, sync }, width) {
  const axis = {
    stroke: () => colour("--quiet"),
    grid: { stroke: () => colour("--line"), width: 1 },
    ticks: { stroke: () => colour("--line"), width: 1, size: 4 },
    font: "11px system-ui, sans-serif",
  };
  return {
    width,
    height,
    legend: { show: false },
    cursor: {
      drag: { x: false, y: false },
      points: { size: 6 },
      ...(sync ? { sync: { key: sync } } : {}),
    },
    scales: {
      x: { time: false },
      y: {
        range: (_, low, high) =>
          low === high
            ? [Math.min(low, 0), Math.max(low, 0) || 1]
            : uPlot.rangeNum(zero ? Math.min(0, low) : low, high, 0.1, true),
      },
    },
    series: [
      {},
      ...lines.map((line, at) => ({
        label: line.label,
        stroke: () => colour(`--series-${at % 4}`),
        width: 1.5,
        dash: [[], [6, 3], [2, 3], [8, 3, 2, 3]][at % 4] ?? [],
        spanGaps: true,
        points: { show: line.steps.length < 60, size: 4 },
      })),
    ],
    axes: [
      {
        ...axis,
        size: 26,
        space: 40,
        incrs: [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 5000, 10000],
      },
      { ...axis, size: 52, values: (_, ticks) => ticks.map(tick) },
    ],
    plugins: [drawnMarks(marks)],
  };
}

/** @param {Drawn} drawn */
export function Chart(drawn) {
  const place = useRef(/** @type {HTMLDivElement | null} */ (null));
  const said = useRef(/** @type {HTMLOutputElement | null} */ (null));
  const onStep = useRef(drawn.onStep);
  onStep.current = drawn.onStep;
  const key = JSON.stringify([drawn.lines, drawn.marks, drawn.height]);
  useEffect(() => {
    const box = /** @type {HTMLDivElement} */ (place.current);
    const data = aligned(drawn.lines);
    const plot = new uPlot(options(drawn, Math.max(box.clientWidth, 120)), data, box);
    const say = () => {
      const at = plot.cursor.idx;
      const step = typeof at === "number" ? data[0][at] : null;
      const near = (drawn.marks ?? [])
        .filter((mark) => mark.step === step)
        .map((mark) => mark.text);
      const values = drawn.lines.map((line, index) => {
        const value = figure(typeof at === "number" ? data[index + 1]?.[at] : null);
        return drawn.lines.length > 1 ? `${line.label} ${value}` : value;
      });
      const text =
        step === null ? "" : [`step ${step}: ${values.join(", ")}`, ...near].join(" \u00b7 ");
      if (said.current) said.current.textContent = text;
    };
    /** @param {MouseEvent} event */
    const open = (event) => {
      const at = plot.cursor.idx;
      const step = typeof at === "number" ? data[0][at] : undefined;
      if (step === undefined) return;
      // of several lines, the one nearest to the pointer
      const y = event.clientY - plot.over.getBoundingClientRect().top;
      const distance = drawn.lines.map((_, index) => {
        const value = data[index + 1]?.[/** @type {number} */ (at)];
        return typeof value === "number" ? Math.abs(plot.valToPos(value, "y") - y) : Infinity;
      });
      onStep.current?.(step, distance.indexOf(Math.min(...distance)));
    };
    /** @param {KeyboardEvent} event */
    const walk = (event) => {
      const by = event.key === "ArrowRight" ? 1 : event.key === "ArrowLeft" ? -1 : 0;
      const at = plot.cursor.idx ?? -1;
      if (event.key === "Enter" && at >= 0) onStep.current?.(data[0][at] ?? 0, 0);
      if (!by) return;
      event.preventDefault();
      const next = Math.min(Math.max(at + by, 0), data[0].length - 1);
      plot.setCursor({ left: plot.valToPos(data[0][next] ?? 0, "x"), top: 10 });
      plot.cursor.idx = next;
      say();
    };
    const repaint = () => plot.redraw(false);
    const dark = matchMedia("(prefers-color-scheme: dark)");
    const sized = new ResizeObserver(() => {
      if (box.clientWidth && box.clientWidth !== plot.width)
        plot.setSize({ width: box.clientWidth, height: drawn.height ?? 150 });
    });
    sized.observe(box);
    plot.over.addEventListener("mousemove", say);
    plot.over.addEventListener("click", open);
    box.addEventListener("keydown", walk);
    addEventListener("espalier-theme", repaint);
    dark.addEventListener("change", repaint);
    return () => {
      sized.disconnect();
      box.removeEventListener("keydown", walk);
      removeEventListener("espalier-theme", repaint);
      dark.removeEventListener("change", repaint);
      plot.destroy();
    };
  }, [key]);
  const words = `${drawn.label}. ${inWords(drawn.lines)}`;
  return html`<div class="chart">
    <div ref=${place} tabindex="0" role="img" aria-label=${words}
        style=${`height:${drawn.height ?? 150}px`}></div>
    <output ref=${said} class="quiet"></output>
  </div>`;
}
