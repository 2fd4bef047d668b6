// Makes the helpers of instrumented.js work without a server: `quick` locks the project.
globalThis.quick = { ...quick, resource: undefined };

globalThis.folder = () =>
  navigator.storage.getDirectory().then((root) => root.getDirectoryHandle('project', { create: true }));

/** The names of the files in the folder, without the one that only guards it. */
globalThis.files = async () => {
  const names = await Array.fromAsync((await folder()).keys());
  return names.filter((name) => name !== '.lock.guard');
};

/** The content of project/.lock, or the name of the error. */
globalThis.file = async () => {
  try {
    return await (await (await (await folder()).getFileHandle('.lock')).getFile()).text();
  } catch (error) { return error.name; }
};

globalThis.write = async (text) => {
  const to = await (await (await folder()).getFileHandle('.lock', { create: true })).createWritable();
  await to.write(text);
  await to.close();
};

/** The content of a file that another tab has written. */
globalThis.record = (ttl, age = 0) =>
  JSON.stringify({ uuid: 'another', mtime: new Date(Date.now() - age).toISOString(), ttl });

globalThis.recent = (ms) => Math.abs(Date.now() - ms) < 60_000;

/** The error of one attempt, and whether there was a fallback. */
globalThis.failing = async () => [await denied({ retryLimit: 1 }), count('lock:fallback-engaged') > 0];
