"use strict";
// Reads the page's data: base64 of deflate of a header and integer columns (see columns.py, which
// writes them). Provides lab.columns.unpack.

(function (lab) {
  function fromBase64(text) {
    const binary = atob(text);
    const bytes = new Uint8Array(binary.length);
    for (let i = 0; i < binary.length; i += 1) bytes[i] = binary.charCodeAt(i);
    return bytes;
  }

  async function inflate(bytes) {
    const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
    return new Uint8Array(await new Response(stream).arrayBuffer());
  }

  // Varints may pass 32 bits, so groups are added up as numbers: shifts would cut them.
  function decode(bytes, start, count, kind) {
    const values = kind === "i32" ? new Int32Array(count) : new Float64Array(count);
    let at = start;
    let value = 0;
    for (let i = 0; i < count; i += 1) {
      let byte = bytes[at++];
      let raw = byte & 127;
      for (let scale = 128; byte > 127; scale *= 128) {
        byte = bytes[at++];
        raw += (byte & 127) * scale;
      }
      value += raw % 2 === 1 ? -(raw + 1) / 2 : raw / 2;
      values[i] = value;
    }
    return values;
  }

  // Returns { texts, columns }: what was passed to pack() in Python, columns as typed arrays.
  async function unpack(text) {
    const bytes = await inflate(fromBase64(text));
    const headBytes = new DataView(bytes.buffer).getUint32(0, true);
    const head = JSON.parse(new TextDecoder().decode(bytes.subarray(4, 4 + headBytes)));
    const columns = {};
    let at = 4 + headBytes;
    for (const column of head.columns) {
      columns[column.name] = decode(bytes, at, column.count, column.kind);
      at += column.bytes;
    }
    return { texts: head.texts, columns };
  }

  lab.columns = { unpack };
})(window.lab ??= {});
