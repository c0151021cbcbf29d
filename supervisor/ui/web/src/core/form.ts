/** Forms of questions (ACP `elicitation/create`), from their JSON Schema. */
import { list, object, text } from "./records";

export interface Field {
  name: string;
  title: string;
  description: string;
  kind: "string" | "number" | "integer" | "boolean";
  required: boolean;
  choices?: { value: string; name: string }[];
  initial: string;
}

/** Returns the fields of a form, in the asker's order. */
export function fields(schema: unknown, order: string[] | undefined): Field[] {
  const properties = object(object(schema)["properties"]);
  const required = new Set(list(object(schema)["required"]));
  const names = [...new Set([...(order ?? []).filter((name) => name in properties), ...Object.keys(properties)])];
  return names.map((name) => {
    const property = object(properties[name]);
    const type = property["type"];
    const kind = type === "number" || type === "integer" || type === "boolean" ? type : "string";
    const initial = property["default"];
    return {
      name,
      title: text(property["title"]) || name,
      description: text(property["description"]),
      kind,
      required: required.has(name) && kind !== "boolean",
      choices: choices(property),
      initial: initial === undefined || initial === null ? "" : String(initial),
    };
  });
}

function choices(property: Record<string, unknown>): Field["choices"] {
  const titled = list(property["oneOf"])
    .map(object)
    .filter((choice) => "const" in choice);
  if (titled.length > 0)
    return titled.map((choice) => ({
      value: String(choice["const"]),
      name: text(choice["title"]) || String(choice["const"]),
    }));
  if (!Array.isArray(property["enum"])) return undefined;
  const names = list(property["enumNames"]);
  return property["enum"].map((value, index) => ({ value: String(value), name: text(names[index]) || String(value) }));
}

/** Returns the values with which a form begins. */
export function initial(asked: Field[]): Record<string, string> {
  return Object.fromEntries(
    asked.map(({ name, initial: value, kind }) => [name, kind === "boolean" ? String(value === "true") : value]),
  );
}

/** Returns the values as the endpoint wants them. Empty ones are left out, and get their defaults. */
export function parsed(asked: Field[], values: Record<string, string>): Record<string, unknown> {
  const result: Record<string, unknown> = {};
  for (const { name, kind } of asked) {
    const value = values[name] ?? "";
    if (kind === "boolean") result[name] = value === "true";
    else if (value !== "") result[name] = kind === "string" ? value : Number(value);
  }
  return result;
}
