// Who sits where in the picture of a space. A seat is kept between two answers of the server, also by somebody who left, until it
// is needed: nothing in the picture moves but when somebody new comes and no seat is free.

/** Participants that are drawn; a picture of more would be read by nobody. */
export const SEATS_MAX = 60;

export class Seating {
  private readonly seats: (string | undefined)[] = [];

  /** The participants in the order of their seats; an empty seat is `undefined`. */
  take(present: readonly string[]): readonly (string | undefined)[] {
    const here = new Set(present);
    for (const [index, id] of this.seats.entries()) if (id !== undefined && !here.has(id)) this.seats[index] = undefined;
    for (const id of present) {
      if (this.seats.includes(id)) continue;
      const free = this.seats.indexOf(undefined);
      if (free >= 0) this.seats[free] = id;
      else if (this.seats.length < SEATS_MAX) this.seats.push(id);
    }
    return [...this.seats];
  }
}
