// The keys there are.

import { pages } from "../pages.ts";
import { isHelpShown } from "../shortcuts.ts";
import { Dialog } from "./dialog.tsx";

export function Help() {
  if (!isHelpShown.value) return null;
  const close = (): void => {
    isHelpShown.value = false;
  };
  return (
    <Dialog title="Keyboard" onClose={close}>
      <dl class="keys">
        {pages.map(({ letter, title }) => (
          <div key={letter}>
            <dt>
              <kbd>g</kbd> <kbd>{letter}</kbd>
            </dt>
            <dd>{title}</dd>
          </div>
        ))}
        <div>
          <dt>
            <kbd>/</kbd>
          </dt>
          <dd>To the filter of the page</dd>
        </div>
        <div>
          <dt>
            <kbd>Space</kbd>
          </dt>
          <dd>Pause and resume the live tail</dd>
        </div>
        <div>
          <dt>
            <kbd>Esc</kbd>
          </dt>
          <dd>Close what is open, empty a filter</dd>
        </div>
        <div>
          <dt>
            <kbd>?</kbd>
          </dt>
          <dd>This list</dd>
        </div>
      </dl>
    </Dialog>
  );
}
