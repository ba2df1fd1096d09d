// @ts-check
/** Sign in: with the administrator token that the first start printed, or with an access key. */
import { Problem, signIn } from '../core/api.js';
import { html, useEffect, useState } from '../core/lib.js';
import { Field } from '../parts/field.js';
import { Banner } from '../parts/page.js';
import { Code } from '../parts/payload.js';

export function SignIn() {
  const [byKey, setByKey] = useState(false);
  const [token, setToken] = useState('');
  const [user, setUser] = useState('');
  const [secret, setSecret] = useState('');
  const [refusal, setRefusal] = useState('');
  const [busy, setBusy] = useState(false);
  useEffect(() => { document.title = 'Sign in · LightMQ'; }, []);
  /** @param {Event} event */
  const submit = async (event) => {
    event.preventDefault();
    setBusy(true);
    setRefusal('');
    try {
      await signIn(byKey ? { user, secret } : { token: token.trim() });
    } catch (failure) {
      setRefusal(told(failure, byKey));
      setBusy(false);
    }
  };
  return html`<main class="signin"><form class="card" onSubmit=${submit}>
    <div class="brand"><img src="/console/static/favicon.svg" alt="" />LightMQ</div>
    <div><h1>Sign in</h1><p class="quiet">${byKey ? 'With the name and secret of an access key.' : 'With the token that the server printed when it started.'}</p></div>
    ${refusal && html`<div role="alert"><${Banner} kind="bad">${refusal}<//></div>`}
    ${byKey
      ? html`<${Field} key="user" label="Access key" value=${user} onInput=${setUser} auto="username" required />
             <${Field} key="secret" label="Secret" value=${secret} onInput=${setSecret} type="password" auto="current-password" required />`
      : html`<${Field} key="token" label="Administrator token" value=${token} onInput=${setToken} type="password" auto="current-password" required mono />`}
    <button type="submit" class="button primary" disabled=${busy}>${busy ? 'Signing in…' : 'Sign in'}</button>
    <button type="button" class="button bare" onClick=${() => { setByKey(!byKey); setRefusal(''); }}>${byKey ? 'Use the administrator token' : 'Use an access key'}</button>
    ${!byKey && html`<div class="stack small quiet"><p>Lost it? This makes a new one; the old one ends:</p><${Code} text="lightmq console token --renew" /></div>`}
  </form></main>`;
}

/** @param {unknown} failure @param {boolean} byKey */
function told(failure, byKey) {
  if (!(failure instanceof Problem)) return String(failure);
  if (failure.status === 401) return byKey ? 'No access key has this name and secret.' : 'This is not the administrator token of this server.';
  if (failure.status === 429) return failure.detail || 'Too many failed attempts from this address. Wait a minute.';
  return failure.detail || failure.title;
}
