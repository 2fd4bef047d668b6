// Preloaded by --import, it makes this process's clock wrong by CLOCK_OFFSET milliseconds.
const offset = Number(process.env.CLOCK_OFFSET);
const now = Date.now;
globalThis.Date = class extends Date {
  constructor(...args) {
    super(...(args.length > 0 ? args : [now() + offset]));
  }

  static now() {
    return now() + offset;
  }
};
