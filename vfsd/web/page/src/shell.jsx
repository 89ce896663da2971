// @ts-check
// The frame of every page: navigation, login, help and messages.
import { Component } from "preact";
import { useEffect, useState } from "preact/hooks";
import { locked } from "./api.js";
import { go, route } from "./router.js";
import { PAGES, pageOf } from "./routes.js";
import { begin, login, logout, session, sessionError, theme } from "./session.js";
import { Button, Empty, Failure, Field, Spinner } from "./ui/basics.jsx";
import { Icon } from "./ui/icons.jsx";
import { KeyboardHelp, helpOpen } from "./ui/keyboard.jsx";
import { Toasts } from "./ui/messages.jsx";

export function Shell() {
  const now = session.value;
  if (locked.value || (!now && sessionError.value)) return <Login />;
  if (!now) return <div class="starting"><Spinner /></div>;
  return <Frame />;
}

function Frame() {
  const { path, params } = route.value;
  const found = pageOf(path);
  const store = session.value?.store.name ?? "";
  useEffect(() => {
    const title = found?.rest || found?.page.name || "Not found";
    document.title = `${title} · ${store || "vfsd"}`;
  }, [path, store]);
  return (
    <>
      <Header current={found?.page.at ?? null} />
      <main id="main" tabIndex={-1} data-test="main">
        {found ? (
          <Guard key={path}>
            <found.page.page key={found.page.at} rest={found.rest} params={params} />
          </Guard>
        ) : (
          <Empty icon="help" title="There is no such page">
            <a href="#/">To the library</a>
          </Empty>
        )}
      </main>
      <Toasts />
      {helpOpen.value ? <KeyboardHelp /> : null}
    </>
  );
}

/** Shows the error of a page in its place. */
class Guard extends Component {
  /** @type {{error: any}} */
  state = { error: null };

  /** @param {any} error */
  static getDerivedStateFromError(error) {
    return { error };
  }

  render() {
    const { error } = this.state;
    if (!error) return this.props.children;
    return (
      <div class="padded">
        <Failure
          error={{ message: `This page failed: ${error.message}`, hint: "The store is not affected." }}
          onRetry={() => this.setState({ error: null })}
        />
      </div>
    );
  }
}

/** @param {Event} event */
function focusMain(event) {
  event.preventDefault();
  document.getElementById("main")?.focus();
}

/** @param {{current: string | null}} props */
function Header({ current }) {
  const pages = PAGES.filter((page) => page.icon);
  const under = PAGES.find((page) => page.at === current)?.under;
  const [more, setMore] = useState(false);
  const { store, version, role, write } = session.value ?? { store: { name: "" }, version: "", role: "", write: false };
  const themes = /** @type {Record<string, [string, string, string]>} */ ({
    auto: ["auto", "Colours of the system", "light"],
    light: ["sun", "Light colours", "dark"],
    dark: ["moon", "Dark colours", "auto"],
  });
  const [icon, label, next] = themes[theme.value] ?? themes.auto;
  useEffect(() => setMore(false), [route.value.path]);
  return (
    <header class="top">
      <a class="skip" href={location.hash || "#/"} onClick={focusMain}>Skip to contents</a>
      <a class="brand" href="#/" title={`vfsd ${version}`} data-test="brand">
        <Mark />
        <span>{store.name || "vfsd"}</span>
      </a>
      <nav aria-label="Pages" class={more ? "open" : ""}>
        {pages.map((page) => (
          <a
            key={page.at}
            href={`#/${page.at}`}
            class={page.menu ? "menu-page" : ""}
            aria-current={page.at === current || page.at === under ? "page" : undefined}
            data-test={`nav-${page.at || "library"}`}
          >
            <Icon name={page.icon ?? ""} />
            <span>{page.name}</span>
          </a>
        ))}
        {pages.some((page) => page.menu) ? (
          <button type="button" class="nav-more" aria-expanded={more} onClick={() => setMore(!more)} data-test="nav-more">
            <Icon name="more" />
            <span>More</span>
          </button>
        ) : null}
      </nav>
      <div class="top-end">
        {write ? null : <span class="readonly" title={`Role: ${role}. Start the server with --write to change the store.`}>read-only</span>}
        <Button kind="quiet" icon="help" label="Keys" keys="?" onClick={() => { helpOpen.value = true; }} test="help" />
        <Button kind="quiet" icon={icon} label={label} onClick={() => { theme.value = next; }} test="theme" />
        <Button kind="quiet" icon="logout" label="Log out" onClick={() => void logout()} test="logout" />
      </div>
    </header>
  );
}

function Mark() {
  return (
    <svg class="mark" width="24" height="24" viewBox="0 0 32 32" aria-hidden="true">
      <rect width="32" height="32" rx="8" />
      <path class="mark-large" d="M8 10h9v12H8z" />
      <path class="mark-small" d="M19 10h5v5h-5zM19 17h5v5h-5z" />
    </svg>
  );
}

function Login() {
  const [token, setToken] = useState("");
  const [busy, setBusy] = useState(false);
  const [failed, setFailed] = useState(/** @type {any} */ (null));
  const error = failed ?? (sessionError.value?.status === 401 ? null : sessionError.value);
  /** @param {Event} event */
  const submit = async (event) => {
    event.preventDefault();
    setBusy(true);
    try {
      await login(token.trim());
      setFailed(null);
    } catch (problem) {
      setFailed(problem);
    }
    setBusy(false);
  };
  return (
    <main class="login" id="main">
      <form class="card" onSubmit={submit} data-test="login">
        <div class="login-brand"><Mark /><h1>vfsd</h1></div>
        <p class="muted">Open the address that <code>vfsd serve</code> printed, or enter its token.</p>
        <Field label="Token">
          {(id) => (
            <input
              id={id}
              type="password"
              autoComplete="current-password"
              value={token}
              required
              autoFocus
              spellcheck={false}
              onInput={(event) => setToken(event.currentTarget.value)}
              data-test="token"
            />
          )}
        </Field>
        {error ? <Failure error={error} onRetry={error.status === 0 ? () => void begin() : undefined} /> : null}
        <Button kind="primary" type="submit" busy={busy} test="login-submit">Log in</Button>
      </form>
      <Toasts />
    </main>
  );
}

/** Keys that hold on every page.
 * @param {KeyboardEvent} event */
export function globalKey(event) {
  const target = /** @type {HTMLElement} */ (event.target);
  if (event.defaultPrevented || event.ctrlKey || event.metaKey || event.altKey) return;
  if (target.isContentEditable || /^(INPUT|TEXTAREA|SELECT)$/.test(target.tagName)) return;
  if (event.key === "?") {
    helpOpen.value = !helpOpen.value;
  } else if (event.key === "/") {
    const field = document.querySelector("[data-search-field]");
    if (field instanceof HTMLElement) field.focus();
    else go("#/search");
    event.preventDefault();
  }
}
