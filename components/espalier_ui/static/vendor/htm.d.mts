// What the viewer uses of htm.mjs.
declare const htm: {
  bind<Made>(
    make: (type: unknown, props: object | null, ...children: never[]) => Made,
  ): (strings: TemplateStringsArray, ...values: unknown[]) => Made;
};
export default htm;
