// Text -> token ids and labels, as in Python: byte pairs, or whole words.

const END_OF_TEXT = "<|endoftext|>";

/**
 * Byte pairs, as in GPT-2. `pieces[id]` is the token in the notation of vocab.json, where every byte
 * is one character. A word is cut into bytes; then the two neighbours that make the token with the
 * lowest id are joined, again and again.
 */
class BytePairs {
  constructor(pieces) {
    // Printable bytes stand for themselves; the others have the characters from U+0100 on.
    const stays = (byte) => (byte > 32 && byte < 127) || (byte > 160 && byte !== 173);
    let others = 256;
    this.letters = Array.from({ length: 256 }, (_, byte) => String.fromCharCode(stays(byte) ? byte : others++));
    this.bytes = new Map(this.letters.map((letter, byte) => [letter, byte]));
    this.pieces = pieces;
    this.ids = new Map(pieces.map((piece, id) => [piece, id]));
    this.known = new Map(); // the ids of words that were read before
  }

  /** The ids and labels of a text. */
  read(text) {
    const ids = [];
    text.split(END_OF_TEXT).forEach((part, i) => {
      if (i) ids.push(this.ids.get(END_OF_TEXT));
      for (const [word] of part.matchAll(WORDS)) ids.push(...this.pairs(word));
    });
    return { ids, labels: ids.map((id) => this.label(id)), unknown: [] };
  }

  pairs(word) {
    if (!this.known.has(word)) {
      const parts = Array.from(new TextEncoder().encode(word), (byte) => this.letters[byte]);
      for (;;) {
        let best = Infinity, at = -1;
        for (let i = 0; i + 1 < parts.length; i++) {
          const id = this.ids.get(parts[i] + parts[i + 1]) ?? Infinity;
          if (id < best) [best, at] = [id, i];
        }
        if (at < 0) break;
        parts.splice(at, 2, parts[at] + parts[at + 1]);
      }
      this.known.set(word, parts.map((part) => this.ids.get(part)));
    }
    return this.known.get(word);
  }

  /** The text of a token. Bytes of incomplete characters are escaped. */
  label(id) {
    const piece = this.pieces[id];
    return piece === END_OF_TEXT ? piece : decoded(Array.from(piece, (letter) => this.bytes.get(letter)));
  }
}

// How GPT-2 cuts a text: endings such as 's, words, numbers, other characters, white space. The last
// space before a word belongs to the word.
const WORDS = new RegExp(
  "'(?:[sdmt]|ll|ve|re)| ?\\p{L}+| ?\\p{N}+| ?[^\\p{White_Space}\\p{L}\\p{N}]+" +
  "|\\p{White_Space}+(?!\\P{White_Space})|\\p{White_Space}", "gu");

/** Bytes as text; a byte that is not part of a whole character becomes an escape such as \xe7. */
function decoded(bytes) {
  const decoder = new TextDecoder("utf-8", { fatal: true, ignoreBOM: true });
  let text = "";
  for (let at = 0; at < bytes.length; ) {
    let length = 4;
    for (; length > 0; length--) {
      try {
        const part = decoder.decode(Uint8Array.from(bytes.slice(at, at + length)));
        if (Array.from(part).length > 1) continue; // more than one character
        text += part;
        break;
      } catch {
        // Not a whole character; try a shorter one.
      }
    }
    if (!length) text += `\\x${bytes[at].toString(16).padStart(2, "0")}`;
    at += Math.max(length, 1);
  }
  return text;
}

/** Whole words. "The" is read as "the", and a word outside the vocabulary as <unk>, with a "?". */
class Words {
  constructor(vocabulary) {
    this.pieces = vocabulary;
    this.ids = new Map(vocabulary.map((word, id) => [word, id]));
  }

  read(text) {
    const ids = [], labels = [], unknown = [];
    for (const piece of withSpacing(text.split(SPACES).filter(Boolean).join(" ").match(PIECES) ?? [])) {
      const forms = [piece, piece.toLowerCase(), piece.slice(0, 1).toUpperCase() + piece.slice(1).toLowerCase()];
      const form = forms.find((each) => this.ids.has(each) && each !== UNKNOWN && each !== NO_SPACE);
      if (form === undefined) unknown.push(piece);
      ids.push(this.ids.get(form ?? UNKNOWN));
      labels.push(form === undefined ? `${piece}?` : piece);
    }
    return { ids, labels, unknown };
  }

  label(id) {
    return this.pieces[id];
  }
}

const UNKNOWN = "<unk>", NO_SPACE = "<|nospace|>";
const SPACES = /[\p{White_Space}\x1c-\x1f]+/u;
// A word may have apostrophes and hyphens inside. Every other character is a piece by itself.
const PIECES = new RegExp(
  "<\\|endoftext\\|>|[\\p{L}\\p{M}\\p{N}_](?:[\\p{L}\\p{M}\\p{N}_]|['\\u2019-](?=[\\p{L}\\p{M}\\p{N}_]))*|.", "gsu");
const isWord = (piece) => /^[\p{L}\p{M}\p{N}_]/u.test(piece) || piece === END_OF_TEXT;

/** Drop the spaces before words, which are implied, and mark where one is missing. */
function withSpacing(pieces) {
  const tokens = [];
  pieces.forEach((piece, i) => {
    const before = pieces[i - 1];
    if (isWord(piece) && before !== undefined && before !== " ") tokens.push(NO_SPACE);
    else if (isWord(piece) && before === " " && i > 1) tokens.pop();
    tokens.push(piece);
  });
  return tokens;
}
