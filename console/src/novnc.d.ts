// The part of noVNC's API that the console uses; the package has no types.
declare module "@novnc/novnc" {
  export default class RFB extends EventTarget {
    constructor(
      target: HTMLElement,
      channel: WebSocket | string,
      options?: { shared?: boolean; credentials?: { password?: string } },
    );
    viewOnly: boolean;
    scaleViewport: boolean;
    resizeSession: boolean;
    background: string;
    disconnect(): void;
    focus(): void;
    clipboardPasteFrom(text: string): void;
  }
}
