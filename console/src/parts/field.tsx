// Form fields with a label, and a hint or error below.

import type { ComponentChildren } from "preact";
import { useId } from "preact/hooks";

import { Icon } from "./icon.tsx";

interface FieldProps {
  readonly label: string;
  readonly value: string;
  readonly onInput: (value: string) => void;
  readonly hint?: ComponentChildren;
  readonly error?: string | undefined;
  readonly type?: "text" | "password";
  readonly placeholder?: string;
  /** More than one makes it a text area with this many lines. */
  readonly lines?: number;
  readonly isRequired?: boolean;
  readonly autocomplete?: string;
  /** Suggestions while typing. */
  readonly options?: readonly string[];
}

export function Field(props: FieldProps) {
  const { label, value, onInput, hint, error, type = "text", lines = 1, isRequired = false, options } = props;
  const id = useId();
  const shared = {
    id,
    value,
    placeholder: props.placeholder,
    required: isRequired,
    spellcheck: false,
    "aria-invalid": error !== undefined,
    "aria-describedby": `${id}-hint`,
    onInput: (event: { currentTarget: HTMLInputElement | HTMLTextAreaElement }) => onInput(event.currentTarget.value),
  };
  return (
    <div class="field">
      <label for={id}>{label}</label>
      {lines > 1 && <textarea {...shared} rows={lines} />}
      {lines === 1 && type === "password" && <input {...shared} type="password" autocomplete={props.autocomplete ?? "off"} />}
      {lines === 1 && type === "text" && (
        <input {...shared} type="text" autocomplete={props.autocomplete ?? "off"} list={options && `${id}-options`} />
      )}
      {options && (
        <datalist id={`${id}-options`}>
          {options.map((option) => (
            <option key={option} value={option} />
          ))}
        </datalist>
      )}
      <p id={`${id}-hint`} class={error === undefined ? "note" : "note bad"} role={error === undefined ? undefined : "alert"}>
        {error ?? hint}
      </p>
    </div>
  );
}

interface ChoiceProps<T extends string> {
  readonly label: string;
  readonly value: T;
  readonly options: readonly (readonly [value: T, title: string])[];
  readonly onChange: (value: T) => void;
}

/** A drop-down list. */
export function Choice<T extends string>({ label, value, options, onChange }: ChoiceProps<T>) {
  return (
    <label class="choice">
      <span>{label}</span>
      <select value={value} onChange={(event) => onChange(event.currentTarget.value as T)}>
        {options.map(([key, title]) => (
          <option key={key} value={key}>
            {title}
          </option>
        ))}
      </select>
    </label>
  );
}

/** A check box whose label only screen readers see. */
export function Tick({ label, isOn, onTurn }: { label: string; isOn: boolean; onTurn: (isOn: boolean) => void }) {
  return <input type="checkbox" aria-label={label} checked={isOn} onChange={(event) => onTurn(event.currentTarget.checked)} />;
}

interface FilterProps {
  readonly label: string;
  readonly value: string;
  readonly onInput: (value: string) => void;
  readonly placeholder?: string;
  /** Whether `/` focuses this field. */
  readonly isMain?: boolean;
}

/** A filter field; Escape clears it. */
export function Filter({ label, value, onInput, placeholder, isMain = false }: FilterProps) {
  return (
    <label class={isMain ? "filter main" : "filter"}>
      {isMain && <Icon name="search" />}
      <span class={isMain ? "unseen" : undefined}>{label}</span>
      <input
        type="search"
        value={value}
        placeholder={placeholder}
        spellcheck={false}
        autocomplete="off"
        data-filter={isMain || undefined}
        onInput={(event) => onInput(event.currentTarget.value)}
        onKeyDown={(event) => {
          if (event.key === "Escape") onInput("");
        }}
      />
    </label>
  );
}

interface TabsProps<T extends string> {
  readonly label: string;
  readonly value: T;
  readonly options: readonly (readonly [value: T, title: ComponentChildren])[];
  readonly onChange: (value: T) => void;
}

/** A group of toggle buttons of which one is pressed. */
export function Tabs<T extends string>({ label, value, options, onChange }: TabsProps<T>) {
  return (
    <div class="tabs" role="group" aria-label={label}>
      {options.map(([key, title]) => (
        <button key={key} type="button" aria-pressed={key === value} onClick={() => onChange(key)}>
          {title}
        </button>
      ))}
    </div>
  );
}
