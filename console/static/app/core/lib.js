// @ts-check
/** The one door to the vendored libraries: Preact with hooks and htm (one file), uPlot. */
export {
  createContext, h, html, render, useCallback, useContext, useEffect, useLayoutEffect, useMemo, useRef, useState,
} from '../../vendor/htm/standalone.module.js';
export { default as uPlot } from '../../vendor/uplot/uPlot.esm.js';
