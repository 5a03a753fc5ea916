// Assigns participants to slots of the graph. A participant keeps its slot, and a newcomer takes a free one, so the graph moves only when a
// newcomer finds no free slot.

/** Participants drawn; a graph with more is unreadable. */
export const NODES_MAX = 60;

export class Slots {
  private readonly slots: (string | undefined)[] = [];

  /** The participants in slot order; an empty slot is `undefined`. */
  assign(present: readonly string[]): readonly (string | undefined)[] {
    const ids = new Set(present);
    for (const [index, id] of this.slots.entries()) if (id !== undefined && !ids.has(id)) this.slots[index] = undefined;
    for (const id of present) {
      if (this.slots.includes(id)) continue;
      const free = this.slots.indexOf(undefined);
      if (free >= 0) this.slots[free] = id;
      else if (this.slots.length < NODES_MAX) this.slots.push(id);
    }
    return [...this.slots];
  }
}
