// What the viewer uses of preact.mjs.
export interface VNode {
  readonly props: object;
}
export type Node = VNode | string | number | boolean | null | undefined | Node[];
export function h(type: unknown, props: object | null, ...children: Node[]): VNode;
export function render(node: Node, into: Element): void;
